import subprocess
import sys
from pathlib import Path

import pytest

import hpcrl.engines
import hpcrl.models


@pytest.mark.slow
def test_no_module_of_models_and_engines_imports_transformers():
    names = [
        f"{package.__name__}.{path.stem}"
        for package in (hpcrl.models, hpcrl.engines)
        for path in Path(next(iter(package.__path__))).glob("*.py")
        if path.stem != "__init__"
    ]
    assert len(names) > 20
    script = f"import sys, {', '.join(names)}; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
