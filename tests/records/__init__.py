"""Records: tables of a project whose rows are jobs."""
