"""What chains are made of, one shape a module: each is a part of the shop, and a page of ``docs/guides``.

The straight line, where every step has one next step, is ``shop.jobs``.
"""
