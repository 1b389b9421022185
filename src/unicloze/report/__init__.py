r"""Shows one example as the model sees it, and writes a page about a run.

    Examples, answers -> example_view -> JSON, text
                              |
                           picture  -> svg -> SVG, PNG
                              |
    RUN -> history  ->       page   -> RUN/report.html
                   \          |
                    \      charts
                     \        |
    RUN of a task  ->      task_page -> report.html

`unicloze inspect` shows `example_view` and `picture`; `unicloze report` writes `page`.
"""
