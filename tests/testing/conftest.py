from tests.support.fixtures import only_slice

processors = only_slice()
