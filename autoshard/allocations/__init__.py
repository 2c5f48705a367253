"""A rank's memory over one step, block by block, and a dump of a real run against it."""
