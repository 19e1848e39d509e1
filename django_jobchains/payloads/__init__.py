"""The inputs and outputs of jobs: strict JSON, values of declared types, and their JSON Schemas."""
