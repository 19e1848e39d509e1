"""What can be done to chains, jobs and queues in the admin."""
