"""``JobRecordAdmin``, a mixin for the admin classes of models with records."""
