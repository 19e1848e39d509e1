"""Database connections, ids, pages and migrations, below the models and the store."""
