from diffclip.evaluation.protocol import method_of, particulars_of, with_particulars


def test_the_parts_of_a_protocol():
    protocol = with_particulars("as they do; twice", "cost 3")
    assert (method_of(protocol), particulars_of(protocol)) == ("as they do; twice", "cost 3")
    assert with_particulars("plain", "") == method_of("plain") == "plain"
    assert particulars_of("plain") == ""
