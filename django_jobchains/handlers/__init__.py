"""The objects that handlers receive: the running job or batch, its abort signal and its log."""
