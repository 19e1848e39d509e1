"""The pages of one chain and one job."""
