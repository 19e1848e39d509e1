from typing import Any

from django import forms
from django.http import HttpRequest

from django_jobchains.chains import CurrentJob, Job
from shop.models import Order
from shop.patterns.approval import approve, reject


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


class DecisionForm(forms.Form):
    """Decides on an order in the admin of jobs, with the functions that the shop's own page calls."""

    decision = forms.ChoiceField(choices=[("approve", "Approve"), ("reject", "Reject")], widget=forms.RadioSelect)
    reason = forms.CharField(required=False, help_text="For the customer, if you reject the order.")

    def __init__(self, *args: Any, job: Job, request: HttpRequest, **options: Any) -> None:
        super().__init__(*args, **options)
        self.order = Order.objects.filter(chain_id=job.chain_id).first()
        self.request = request
        if self.order:
            self.fields["decision"].help_text = f"{self.order}: {self.order.quantity} × {self.order.product}."

    def complete(self, current: CurrentJob) -> None:
        """Run in the transaction that has locked the job."""
        if self.order is None:
            raise forms.ValidationError("No order belongs to this chain. Cancel the chain instead.")
        person = self.request.user.get_username()
        if self.cleaned_data["decision"] == "approve":
            approve(self.order, person)
        else:
            reject(self.order, self.cleaned_data["reason"], person)

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if values.get("decision") == "reject" and not values.get("reason"):
            self.add_error("reason", "Tell the customer why.")
        return values
