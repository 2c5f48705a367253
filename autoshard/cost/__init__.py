"""What a layout costs: seconds and bytes, term by term. No search in here."""
