"""Shows one example as the model sees it, and writes a page about a run.

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

`unicloze inspect` shows `example_view` and `picture`; `unicloze report` writes `page`.
"""
