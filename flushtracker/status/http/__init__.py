"""HTTP: metrics, health, status and page of a running program, all derived from its document in ``status``.

Programs start a :class:`~flushtracker.status.http.status_server.StatusServer`. Add a metric in ``metrics``, a path in
``status_app``.
"""
