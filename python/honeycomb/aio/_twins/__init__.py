"""The twins of the blocking classes. ``python/generator`` writes these modules."""
