"""What people look at: one example as the model is fed it, and one page about a run.

Examples -> example_view -> JSON, text -> picture -> SVG, PNG
RUN      -> history      -> curves, samples, lineage -> html -> RUN/report.html
"""
