"""The SQLite engine: one file, one owning process, any number of publishers beside it."""
