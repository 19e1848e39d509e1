"""Records whose handlers run in child processes, for workers in separate processes."""
