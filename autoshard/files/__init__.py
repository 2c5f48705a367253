"""Files and values from outside: bounded reading, strict fields, atomic writing."""
