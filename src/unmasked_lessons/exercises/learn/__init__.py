"""The exercises of the pages that teach attention."""
