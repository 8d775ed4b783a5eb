"""HTTP: a running program's metrics, health, status and page. All are views of the document that it maintains."""
