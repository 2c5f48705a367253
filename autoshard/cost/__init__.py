"""The cost model: seconds and bytes of a layout, term by term. No search in here."""
