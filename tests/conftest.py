from __future__ import annotations

import pytest
from support.models import Models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Synthetic model files, written when first asked for."""
    return Models(tmp_path_factory.mktemp("models"))
