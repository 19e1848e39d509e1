"""One try at a job, or at a batch of jobs."""
