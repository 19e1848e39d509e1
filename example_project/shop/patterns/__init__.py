"""The shapes of a chain, one per module. Each is part of the shop and has a page in ``docs/guides``.

The linear chain is in ``shop.jobs``.
"""
