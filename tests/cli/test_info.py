"""`heed info`."""


def test_info(heed):
    status, out, _ = heed("info")
    assert status == 0
    for word in ("heed", "keras", "tensorflow", "implementation", "reason"):
        assert f"\n{word}" in f"\n{out}"
