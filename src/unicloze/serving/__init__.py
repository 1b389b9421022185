"""Serves a model over HTTP: a page to try it on, endpoints of its own, and those that existing clients call.

`served_model` turns a request into a computation, `batching` computes waiting requests together on one thread, and `guard`
refuses what is too large, too late or not allowed before anything is computed. `endpoints` only translate between HTTP and
the model.
"""
