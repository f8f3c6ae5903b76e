"""The plain arithmetic: unions of intervals, rows joined by ids, and how two arms' times are judged."""
