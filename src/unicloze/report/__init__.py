r"""Shows one example as the model sees it, and writes a page about a run.

    Examples, answers -> example_view -> JSON, text
                              |
                           picture  -> svg -> SVG, PNG
                              |
    RUN -> history  ->       page    ---\
             |   \                        frame, templates/ -> report.html
             |    charts                /
             |        \                /
             +-----> task_page --------

`unicloze inspect` shows `example_view` and `picture`; `unicloze report` writes `page`. `frame` fills the templates.
"""
