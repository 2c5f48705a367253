from .errors import AutoshardError as AutoshardError
from .errors import NoLayoutFits as NoLayoutFits
from .interface.calibrating import Calibration as Calibration
from .interface.calibrating import calibrate as calibrate
from .interface.frontier import Frontier as Frontier
from .interface.named import builtin_models as builtin_models
from .interface.named import cluster as cluster
from .interface.named import instances as instances
from .interface.named import model as model
from .interface.planned import Plan as Plan
from .interface.planning import SearchResult as SearchResult
from .interface.planning import frontier as frontier
from .interface.planning import plan as plan
from .interface.planning import read_plan as read_plan
from .interface.planning import search as search
from .interface.questions import Comparison as Comparison
from .interface.questions import Explanation as Explanation
from .interface.questions import Score as Score
from .interface.questions import Why as Why
from .interface.questions import compare as compare
from .interface.questions import explain as explain
from .interface.questions import score as score
from .interface.questions import trace as trace
from .interface.questions import why_not as why_not
from .interface.running import Audit as Audit
from .interface.running import Run as Run
from .interface.running import SweepResult as SweepResult
from .interface.running import audit as audit
from .interface.running import run as run
from .interface.running import sweep as sweep
from .layout.strategy import Strategy as Strategy
from .spec.cluster import Cluster as Cluster
from .spec.model import ModelSpec as ModelSpec
from .spec.training import TrainingSpec as TrainingSpec

__all__: list[str]
__version__: str
