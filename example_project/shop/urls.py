from django.urls import path

from shop import approvals, deliveries, label_pages, stocktaking_pages, tour, views

app_name = "shop"
urlpatterns = [
    path("", views.front_page, name="front"),
    path("orders/", views.order_list, name="orders"),
    path("orders/place/", views.place_order, name="place_order"),
    path("orders/<int:order_id>/", views.order_page, name="order"),
    path("approvals/", approvals.approval_list, name="approvals"),
    path("approvals/<int:order_id>/", approvals.decide, name="decide"),
    path("deliveries/", deliveries.import_list, name="imports"),
    path("deliveries/add/", deliveries.add_import, name="add_import"),
    path("labels/", label_pages.label_list, name="labels"),
    path("labels/render/", label_pages.render_one, name="render_label"),
    path("labels/<uuid:job_id>.svg", label_pages.picture, name="label_picture"),
    path("stocktaking/", stocktaking_pages.start_page, name="stocktakings"),
    path("stocktaking/start/", stocktaking_pages.start, name="start_stocktaking"),
    path("stocktaking/<uuid:chain_id>/", stocktaking_pages.page, name="stocktaking"),
    path("stocktaking/<uuid:chain_id>/state/", stocktaking_pages.state, name="stocktaking_state"),
    path("stocktaking/<uuid:chain_id>/cancel/", stocktaking_pages.cancel, name="cancel_stocktaking"),
    path("outbox/", views.outbox, name="outbox"),
    path("tour/", tour.tour, name="tour"),
    path("tour/report/", tour.report_now, name="report_now"),
    path("tour/kill/<str:worker_id>/", tour.kill_worker, name="kill_worker"),
]
