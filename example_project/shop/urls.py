from django.urls import path

from shop import approvals, views

app_name = "shop"
urlpatterns = [
    path("", views.front_page, name="front"),
    path("orders/", views.order_list, name="orders"),
    path("orders/place/", views.place_order, name="place_order"),
    path("orders/<int:order_id>/", views.order_page, name="order"),
    path("approvals/", approvals.approval_list, name="approvals"),
    path("approvals/<int:order_id>/", approvals.decide, name="decide"),
    path("outbox/", views.outbox, name="outbox"),
]
