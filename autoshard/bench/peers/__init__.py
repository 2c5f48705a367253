"""Other people's cost models, called where they are installed or on PYTHONPATH: an adapter says a row in their words.

None of their code is here.
"""
