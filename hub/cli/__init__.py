"""The commands.  `hub.__main__` lists them, and runs the one that is named.

serve       serve.py      options and environment → settings → `hub.process`
publish     publish.py    → `hub.client`
subscribe   subscribe.py  → `hub.client`
settings    settings.py   → `hub.settings`
token       token.py      → `hub.auth.signing`
verify      verify.py     → `hub.verify`
history     history.py    → `hub.history.transfer`
spark       spark.py      → `skipfilter.spark` and `hub.spark`
app.py      exit statuses, messages, progress
            client_options.py, settings_options.py, selectors.py    shared options
completion.py    completion by a shell

Each module of a command has an application of Typer, `main`.
"""
