"""Filters: `parse_filter` checks a query document, `compile_filter` makes it a predicate, `canonical_form` names it."""
