"""MiniMax-M3's text model: attention to blocks of keys that an indexer chooses for each key-value head, and experts
whose gates are cut off."""
