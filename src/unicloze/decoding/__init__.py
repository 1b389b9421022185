"""Using a trained model on texts.

`fill` fills masks, by AE or in any order by PAR; `score` says how likely a text is; `embed` turns it into a vector. All
make the rows the model was trained on: a text is the window "[SOS] text [EOS]", all of it segment 0.
"""
