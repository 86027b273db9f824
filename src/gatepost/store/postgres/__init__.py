"""The store on PostgreSQL: many dispatcher processes on one database, each owning parts of the queue."""
