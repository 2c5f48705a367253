"""autoshard: plan how a large model is sharded, prove it, run it.

>>> import autoshard
>>> plan = autoshard.plan("llama3-8b", "trn1.32xlarge", nodes=4)
>>> plan.cluster.world_size
128

`__init__.pyi` beside this lists the public names; what each brings is imported when it is first used, torch by `run`,
`audit`, `calibrate` and live modules alone.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
