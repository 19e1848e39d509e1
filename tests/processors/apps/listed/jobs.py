raise AssertionError("jobchains_modules does not name this module")
