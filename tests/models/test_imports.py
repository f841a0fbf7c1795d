import subprocess
import sys
from pathlib import Path

import hpcrl.models


def test_no_module_of_models_imports_transformers():
    folder = Path(next(iter(hpcrl.models.__path__)))
    names = [
        "hpcrl.models." + ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if path.stem != "__init__"
    ]
    assert len(names) > 15
    script = f"import sys, {', '.join(names)}; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
