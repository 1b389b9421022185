"""What people look at: one example as the model is fed it, and one page about a run.

    Examples, answers -> example_view -> JSON, text
                              |
                           picture  -> drawing -> SVG, PNG
                              |
    RUN -> history  ->       page   -> RUN/report.html
                              |
              curves, fed, filled, lineage_table

    RUN of a task -> task_history -> task_page (seeds_page of several) -> report.html
                                        |
                                     charts

`example_view` and `picture` are what `unicloze inspect` shows, `page` is what `unicloze report` writes.
"""
