"""The declared job types and their processors, and the registry that contains them."""
