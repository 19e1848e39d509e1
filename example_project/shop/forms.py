from typing import Any

from django import forms

from shop.models import Order


class OrderForm(forms.ModelForm):  # type: ignore[type-arg]  # ModelForm takes no parameter at run time
    class Meta:
        model = Order
        fields = ("product", "quantity", "email", "address", "card")
        labels = {"card": "Test card"}
        help_texts = {
            "email": "For the receipt and your loyalty points. No real mail is sent.",
            "address": "Leave it empty to collect the order at the shop.",
        }
        widgets = {"card": forms.RadioSelect}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["product"].empty_label = None  # type: ignore[attr-defined]

    def save(self, commit: bool = True) -> Any:
        if self.is_valid():
            self.instance.unit_price = self.instance.product.price
        return super().save(commit)
