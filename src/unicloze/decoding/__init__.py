"""Applies a trained model to texts.

`fill` fills masks, by AE or in any order by PAR; `score` computes a text's likelihood; `embed` turns it into a vector. All
build the same rows as training: a text is the window "[SOS] text [EOS]", all of it segment 0.
"""
