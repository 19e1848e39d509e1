"""The input of most jobs about a parcel."""

from dataclasses import dataclass

from shop.models import Parcel


@dataclass(frozen=True)
class ParcelId:
    parcel_id: int

    def load(self) -> Parcel:
        return Parcel.objects.select_related("order__product").get(pk=self.parcel_id)
