"""A plan carried out: pass after pass, arms interleaved, each written as soon as it is done."""
