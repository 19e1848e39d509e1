"""A project that workers of two versions of the package run at once.

Earlier releases run it too, so it uses only what the first release has.
"""
