"""What apps declare: job types, slices with processors, policies; the registry that holds them; the system checks."""
