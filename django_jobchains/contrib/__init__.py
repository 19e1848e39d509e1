"""Integrations with other products. Import only the ones that you use."""
